"""A job that already ran on SageMaker, from what AWS kept: where its billed time went, what set its pace, what was lost."""
