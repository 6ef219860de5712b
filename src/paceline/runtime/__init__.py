"""What a process reports and watches while it runs: progress, signals, devices and memory.

progress.py           progress of the current phase, reported by engines and trainers to the display
heartbeat.py          the moment of the last sign of life, for the watchdog
timeline.py           spans of time as trace events
watchdog.py           ends a process that has shown no sign of life for too long, with the stack of every thread
signals.py            stops a run at the next safe moment when a signal asks for it
background_writes.py  writes files in a thread while the run continues
devices.py            devices, data types and thread counts
memory.py             memory that was freed and is still held, and errors that say there is none
"""
