"""`headrace trials`: the articles' experiments, repeated on this machine.

- `cells`: Experiments as declared tables: what is varied, what stays, and what others published.
- `accelerator`: What computes in a trial: a real GPU, the CPU, or a simulated GPU.
- `transforms`: The lists of operations, for torchvision and for headrace.
- `article_datasets`: The `Dataset` classes of the articles' scripts.
- `materials`: The data of a trial in every form that a cell can read.
- `containers`: Containers that trials read: tar, RecordIO, TFRecord.
- `source`: What a loader of a trial reads, and with how many workers.
- `object_server`: A read-only S3-compatible server for the files of one folder, on this machine.
- `pipe_sender`: The sender of a SageMaker channel in Pipe mode, on this machine.
- `storage`: A packed dataset in an S3 server on this machine, and in a pipe.
- `loaders`: The loaders that trials compare, one function each.
- `peers`: Loaders of other projects: DALI, torchvision on the GPU, tf.data, FFCV.
- `measure_input`: One process of a trial: the input alone, the computing alone, and both.
- `pixels`: Whether two loaders give the same pixels for the same operations.
- `verdicts`: The diagnosis of one cell.
- `measure_ranks`: Two ranks with a DataLoader each: do they read the same data?
- `processes`: The processes of a trial.
- `runner`: Run an experiment: one process a group of cells, results kept on disk.
- `rows`: The rows of the result table.
- `outputs`: The files of a run besides its page: rows.csv, trials.json, and the table as Markdown.
- `charts`: Charts of a run as SVG and PNG.
- `targets`: What the experiments are to show, each with what was measured.
- `summary`: What a run shows, in sentences.
- `page`: The HTML page of a run.
- `worker_model`: The rate of n worker processes, from what one worker does.
- `measure_training`: One training of a trial: rate, loss and accuracy after each epoch.
- `projection`: Seconds per epoch on the machine of the published numbers.
"""
