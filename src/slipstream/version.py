"""The version of Slipstream, written here and nowhere else: the packaging reads this file.

Not from the metadata of the installed package: code shipped to a Spark worker has none, and looking it up takes longer
than importing the client.
"""

VERSION = "0.1.0"
