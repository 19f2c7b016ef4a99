"""The examination of an unmodified script on one worker and on several: listen writes records, compare reads them."""
