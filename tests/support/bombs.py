"""Commands that multiply beyond what a tool allows, and stay within what a machine bears.

Each grows to about a thousand where nothing ends it: a test that fails must not take the machine
with it.
"""

FORKS = "b() { [ $1 -ge 9 ] || { b $(($1 + 1)) & b $(($1 + 1)) & }; sleep 100; }; b 0"
SESSIONS = (
    "python3 -IS -c 'import os, time\nfor _ in range(10):\n"
    " if os.fork() == 0: os.setsid(); os.getsid(0) == os.getpid() and os._exit(1)\n"
    "time.sleep(100)'"
)
"""It gives up where it could really leave its session: nothing would end it then."""
THREADS = (
    "python3 -IS -c 'import threading, time\nfor _ in range(1000):"
    " threading.Thread(target=time.sleep, args=(99,)).start()'"
)
