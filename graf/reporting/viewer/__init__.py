"""The viewer of trained models in the browser: `server.serve`. server.py and browser.py need viser, an optional extra."""
