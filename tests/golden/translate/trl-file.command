trl grpo --config grpo.yaml --learning_rate 2e-6
