/* The template of a library that has nothing but a name: its name and its version are replaced when it is needed (stand_ins.py). */
