"""`headrace launch local`: SageMaker's contract with a training container, on this machine.

- `channels`: The inputs of a host: folders for File and FastFile, named pipes for Pipe mode, shares of the objects.
- `checkpoints`: The copy of a host's checkpoints to the store while it trains, and back before a restart.
- `host`: One host of a local job: its folders, its JSON files and its process.
- `job`: A training job on local hosts, from a CreateTrainingJob request: attempts, interruptions, limits, results.
- `places`: Where a local job puts checkpoints and results: a folder, or an object store.
- `store`: Folders in place of S3, or S3 itself for what the job writes.
- `watchdog`: Ends the hosts of a local job whose launcher was killed: `python -m headrace.launch.local.watchdog MARKER`
  behind a pipe.
"""
