"""`headrace run`: replace the image loading of a PyTorch script where the replacement is provably equal.

`hook` decides for each DataLoader, `recognise` holds the rules, `translate` the transforms, `compile` and `iterator` the native
loading, `random_streams` plain's random numbers, `native_decode` the decode-only way, `check` the comparison before each
take-over.

- `affine_transform`: Pillow's affine transform of RGB images, natively made while an item is made.
- `awaited_line`: The line on a loader with lazy images: it waits until the first batches have shown what is native, and whether
  that pays.
- `batch_memory`: The memory of batches: kept from one epoch to the next, and shared by all loaders of the process.
- `check`: The comparison of native batches with the script's own, before a loader is taken over.
- `compile`: Compile a recognised loader for the native engine: table of files, program, value table.
- `data_map`: `headrace run --data-map A=B`: files that the script opens for reading below A are read from B.
- `deep_copies`: Deep copies of the script's data: nothing that is changed in the original later shows in the copy.
- `deferred_batch`: A batch of a worker on its way to the training process.
- `deferred_filling`: The computing of deferred tensors: native code fills the tensor's memory.
- `deferred_functions`: The time in which torchvision makes deferred tensors of lazy images: while a batch is made.
- `deferred_loader`: Deferred items: lazy images whose tensors are computed by native threads in the training process.
- `deferred_tensor`: Deferred tensors: tensors whose values are described until something looks at them.
- `deferred_values`: The values of deferred tensors: the result of the script's pointwise operations for each uint8 value.
- `draws`: How the script's transforms draw their random numbers.
- `engine`: The native engine of `headrace run`: one pool of threads for all loaders of the process, and its JPEG indexes.
- `equality`: Whether two batches, items or planned items are equal bit for bit.
- `explain`: The steps of a loader that is taken over: named in its line, and one line each for `headrace run --explain`.
- `flat_transforms`: The transforms in nested containers, in order.
- `forked_child`: A function's result from a forked child: what it changes, prints or leaves behind stays there.
- `hf_datasets`: Rows of Hugging Face `datasets`: what they hold, with planned images in place of decoded ones.
- `hook`: The hook of `headrace run`: decide for each DataLoader of the script how its batches are loaded.
- `image_description`: The description of an image that is not decoded yet: a JPEG, and what Pillow's operations take from it.
- `item_calls`: The calls in the code that makes a dataset's items: what is made, what is planned instead, and what is refused.
- `item_code`: The code that makes a dataset's items, compiled again so that headrace decides about each of its calls.
- `item_iterator`: The iterator for loaders of the script's own items: they are planned here, native threads make their tensors.
- `item_loader`: A DataLoader whose dataset is the script's own code around images that headrace knows how to make.
- `iterator`: The iterator that replaces DataLoader's own: native threads fill the same batches.
- `iterator_watchers`: Code that looks inside torch's iterators, at their worker processes, or at their queues: it must find
  torch's own iterator.
- `kept_state`: The state that the workers of a pass would keep: what the code of items reads, as it is when the workers would
  be started.
- `lazy_loader`: Lazy Pillow images in the script's own items: a way to take a loader over in part, whatever its dataset is.
- `lazy_opening`: The time in which opened JPEGs are lazy: while a dataset item is made, in the thread that makes it.
- `lazy_pillow`: Lazy Pillow images: images of Pillow's own classes whose pixels are decoded when something looks at them.
- `lazy_trial`: The comparison of lazy with ordinary items during the first batches: CPU time an item, on the script's own data.
- `library_code`: Code of libraries: which modules are, and which of their variables the code of an item may read.
- `loop_waits`: What came of a run: how many images the script's loops took, and how long they waited for them.
- `native_decode`: Native decode inside the script's own workers, for a loader that cannot be taken over as a whole.
- `native_readers`: Native decode of the JPEGs that OpenCV and torchvision.io read, while a dataset item is made.
- `native_work`: What this process has made natively of the JPEGs that items open: which library opened them, and what was done
  with them.
- `one_thread`: Torch with one thread in the training process, as a worker has it.
- `own_transforms`: Transform classes of the script's own that only apply operations which headrace knows.
- `partly_native`: A loader of the script that is taken over in part: the script's own iterator runs over a changed copy of it.
- `pillow_blur`: Pillow's Gaussian blur: whether the native one equals it on this machine.
- `pillow_version`: The version of Pillow that the script uses, which the native resize follows.
- `plain_frames`: Warnings of torch's iterators name the same line of torch as without headrace.
- `planned_images`: Images that are planned, not opened: what stands for them while the script's own code makes an item.
- `pointwise`: The value table of a script's pointwise transforms: the result for each uint8 value of each channel.
- `pure_functions`: Functions, types and methods that only compute a value: the code of an item may call them.
- `quiet_files`: Files that Pillow reads without a warning, and without an error over their metadata: only those are decoded
  without Pillow.
- `random_streams`: The random streams of the script's processes: the generators of torch, Python and NumPy of a worker or the
  main process.
- `randomness`: Random generators for the parts of the script that headrace runs in the main process.
- `recognition_hook`: The hook of `headrace diagnose`: ask the recogniser of `headrace run` about each DataLoader.
- `recognise`: The rules by which `headrace run` takes over a DataLoader.
- `refusal`: The words for a loader that is not taken over.
- `replaced_functions`: Functions of libraries that the script, or a package, has replaced: native code then does something
  else than plain loading.
- `shared_bytes`: The encoded bytes of images on their way from the workers of a loader to the training process, in memory that
  they share.
- `shared_indexes`: The JPEG indexes that the training process and its workers share.
- `script_state`: The state of the script's objects: what tells whether the training loop has changed a transform between two
  batches.
- `script_text`: The text of the script's own modules: a search for what the script may notice.
- `seeding`: The rule for a `worker_init_fn`: whether all that it can do is seed the random generators of its worker.
- `settings`: The settings of `headrace run`, which reach the script's processes as environment variables.
- `tensor_resize`: The resize of uint8 tensors: whether the native one equals torchvision's on this machine.
- `torch_blur`: torchvision's Gaussian blur of uint8 images: its weights, and whether the native one equals it on this machine.
- `transform_names`: The names of transforms: by which classes of torchvision and timm are recognised, and which messages use.
- `translate`: Translate torchvision and timm transforms into headrace's.
- `type_comparisons`: Modules of the script that compare the class of a tensor by `type()`.
- `unheard_warnings`: Warnings that the script's own loading would not give: those of code that headrace runs once more, to
  compare or to plan.
- `unsupported`: The exception for what `headrace run` does not take over.
- `used_readers`: Which libraries read the images of a loader, as far as the code of its items tells: for the lines of `run`.
- `worker_copies`: Copies of folder datasets that worker processes would have: what the training loop changes does not reach
  their items.
- `worker_errors`: Errors of the script's own code that runs here instead of in a worker: as torch reports an error of a worker.
- `worker_settings`: Settings of the process that a worker keeps from its start: the current folder, and Pillow's limits.
- `worker_warnings`: The warnings of items that the script's own code makes here and not in a worker process: each worker shows
  its own.
- `written_calls`: What the user wrote: names of functions for messages, and the call of the script's own code in which
  something was refused.
"""
