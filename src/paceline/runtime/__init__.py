"""What a process reports and watches while it runs: progress, signals, devices and memory.

activity.py           what the process does, for the watchdog, the display and the trace
interrupts.py         interrupts a thread: by one that watches it, and by signals to stop the run
event_loop.py         the event loop of the user's own async code
watchdog.py           ends a process that has shown no sign of life for too long, with the stack of every thread
background_writes.py  writes files in a thread while the run continues
terminal.py           text for a terminal, which nothing in it steers, and for streams that cannot encode all of it
own_code.py           code of the user's own by its name, from a module or a file
secrets.py            hides secrets in what others wrote
devices.py            devices, data types, thread counts; memory that is free, used, still held or has run out
"""
