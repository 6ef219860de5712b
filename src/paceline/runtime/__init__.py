"""What a process reports and watches while it runs: progress, signals, devices and memory.

activity.py           what the process does, for the watchdog, the display and the trace
interrupts.py         interrupts a thread at its deadline, and stops a run at a signal
watchdog.py           ends a process that has made no progress for too long, with the stack of every thread
shown_text.py         hides secrets; escapes control characters, and replaces what a stream cannot encode
whole_files.py        writes files whole or not at all, through no link
own_code.py           loads the user's code by its name; the event loop of its async functions
devices.py            devices, data types, thread counts; memory that is free, used, still held or has run out
"""
