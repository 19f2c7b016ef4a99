"""Laws over size: how the batch, the steps and the rate grow with parameters, tokens, examples or width."""
