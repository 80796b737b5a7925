"""Files that are made from the program itself: completions, the man page, pages of docs/.

The completions answer by themselves: no program is started at a TAB. Values stand in the scripts;
files are left to the shell, models as *.gguf; a user's own profiles are looked up in the config
folder. After `--` every word is a file.
"""
