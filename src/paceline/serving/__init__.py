"""A model for whoever asks: `paceline serve` by OpenAI's interface, `paceline chat` in the terminal.

loading.py        from options to a model with its engine
model.py          from a request to the tokens of its prompt, and to the engine
images.py         from images of a request to places among the tokens of its prompt
generations.py    requests under way: they share the engine's batch, and get each token
choices.py        from tokens to pieces of text and a turn
server.py         the HTTP server: routes, numbers, an orderly end

What a request may hold and what a response looks like is in `openai_api`, for an episode's endpoint too.
"""
