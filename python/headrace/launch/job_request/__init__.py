"""CreateTrainingJob requests for SageMaker: build one, and check it before it is sent."""
