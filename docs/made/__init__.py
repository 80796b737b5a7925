"""Files generated from the program: completions, the man page, pages of docs/.

The completion scripts start no program: they contain the values, leave files to the shell (models
as *.gguf) and list the user's profiles from the config folder. After `--` they complete files.
"""
