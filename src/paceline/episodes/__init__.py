"""Episodes: a model and an environment take turns, from a task's prompt to the end; one turn alone is the short case.

episode.py         one episode as a coroutine: begin, sample, observe, until it ends; episodes under way
chat.py            its history: what the model reads before each turn, and how each turn is read
waits.py           what an episode waits for
driver.py          many episodes at once, over one engine and the hosts of environments
conversations.py   what a run's conversations have: environments, limits, keys of random numbers
"""
