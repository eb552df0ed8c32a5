"""Parts of the experiment on conservation laws."""
