"""The examination of an unmodified training script: it runs on one worker and on several while its calls are watched.

    listen   inside the script's process: what torch is asked to do, written to a record
    compare  from records to findings: pure functions
"""
