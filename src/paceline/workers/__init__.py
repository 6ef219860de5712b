"""A run on several processes: started by a launcher as ranks (torchrun/), or by this run as actors of Ray (ray/)."""
