"""`brim watch`: what devices hold, what a job did, and whether it ran as planned."""
