"""The examination of a script that is stopped and started again: is it the run that was not stopped?"""
