"""A diagnosis for people and for other programs: terminal, HTML, JSON, Perfetto trace, OpenMetrics text, TensorBoard.

`screen` decides what the first screen holds; `terminal` and `html` draw it, so that the two cannot disagree.

- `charts`: The small drawings of the report as inline SVG. Text beside them is HTML, so that it stays readable at any width.
- `compare_page`: Two sessions side by side as one HTML file: steps to one scale, heat maps, percentiles, and what was set
  differently.
- `compare_sessions`: Two sessions compared: whether the rate changed beyond the noise, which parts of the step changed,
  which settings differ.
- `dataset_page`: The page of a dataset: the facts of `headrace inspect`, class balance and a contact sheet, as one HTML
  file.
- `environment`: The environment of a session: machine, software, processes and loaders, as pairs of name and value.
- `flame`: The flame charts of the report: which functions making a batch and the training step spend their time in.
- `gpu_counters`: The table of GPU counters. "busy" means only that some kernel ran; the other counters tell how much of the
  GPU it used.
- `heat_map`: The core × time heat map as a small PNG inside the page: one pixel per cell, a few kilobytes even for 192
  cores.
- `html`: The report of a diagnosis as one HTML file, readable without a network, without JavaScript, on a phone and on
  paper.
- `learning_rate_page`: The page of a learning-rate range test: the loss over the rate, as one HTML file that needs no
  network.
- `markup`: HTML and SVG as values. Plain strings are escaped where they become children or attributes.
- `numbers`: Numbers with their units, as text for people, the same on the terminal and in HTML.
- `page`: The frame of every HTML page: head, style sheet, security policy, figures in a row, and writing the file.
- `panels`: The page below the first screen: the run over time, tables, other findings, environment, thresholds.
- `sagemaker_job`: The panel of a SageMaker job that already ran: where its billed time went, the articles' signs, and what
  would be surer.
- `screen`: The first screen as data: verdict, rates, the bar of one step, at most five fixes, what was not measured.
- `session_folder`: A session folder: its session and its diagnosis, read and written.
- `session_settings`: The recorded settings of a session (command, machine, versions, variables, threads, loader, model),
  and their differences.
- `share`: A session and its diagnosis for strangers: without host name, folders and addresses.
- `slow_steps`: The steps that took much longer than the others, each with the pause or wait that explains it.
- `step_parts`: The parts of a step in the report: their short names, their groups in the bar, and their look on a terminal.
- `tables`: The tables of the report: percentiles, slow steps, loader stages, ranks, terms of the step model.
- `terminal`: The first screen on a terminal: at most 24 lines of 60 to 120 columns, readable without colour.
- `thresholds`: The thresholds of the rules with what each decides, read from the modules of the rules, so that the page
  cannot differ.
- `timeline`: The run over time: step times, GPUs, CPU cores, disk, network and memory as lanes over one time axis.
- `training_page`: The page of a training run: figures and curves from metrics.jsonl, as one HTML file that needs no network.
"""
