"""Names of the roads that a variable can take."""

#: Rows live on servers, wherever these are: a step pulls rows and pushes gradients.
SERVERS = "servers"
#: Rows are on every worker: a step gathers all workers' slices.
ALLGATHER = "allgather"
#: The value is on every worker: a step all-reduces dense gradients.
ALLREDUCE = "allreduce"

ROADS = (SERVERS, ALLGATHER, ALLREDUCE)
