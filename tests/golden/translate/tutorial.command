python grpo_multi_gpu.py
