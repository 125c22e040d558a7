"""`headrace trials`: the articles' experiments, repeated on this machine.

- `cells`: Experiments as declared tables: what is varied, what stays, and what others published.
- `accelerator`: What computes in a trial: a real GPU, the CPU, or a simulated GPU.
- `transforms`: The lists of operations, for torchvision and for headrace.
- `article_datasets`: The `Dataset` classes of the articles' scripts.
- `materials`: The data of a trial in every form that a cell can read.
- `containers`: Containers that trials read: tar, RecordIO, TFRecord.
- `source`: What a loader of a trial reads, and with how many workers.
- `loaders`: The loaders that trials compare, one function each.
- `peers`: Loaders of other projects: DALI, torchvision on the GPU, tf.data, FFCV.
- `measure_input`: One process of a trial: the input alone, the computing alone, and both.
- `pixels`: Whether two loaders give the same pixels for the same operations.
- `verdicts`: The diagnosis of one cell.
- `runner`: Run an experiment: one process a group of cells, results kept on disk.
- `rows`: The rows of the result table.
- `outputs`: The files of a run besides its page: rows.csv, trials.json, and the table as Markdown.
- `charts`: Charts of a run as SVG and PNG.
- `summary`: What a run shows, in sentences.
- `page`: The HTML page of a run.
- `projection`: Seconds per epoch on the machine of the published numbers.
"""
