#!/bin/sh
# Start the script beside this file under headrace, in the place of this file: headrace_entry.py does it. headrace wrote both.
here=$(dirname "$0")
for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 && exec "$python" "$here/headrace_entry.py" "$@"
done
script=$here/"§script"
echo "headrace: $script runs plain: there is no Python" >&2
chmod +x "$script"
exec "$script" "$@"
