"""What an unmodified training script asks of torch and Horovod, told to listeners while it runs."""
