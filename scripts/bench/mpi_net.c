/*
 * mpi_net.c - a net between the ranks of one machine, for scripts/bench/ranks.sh. It lies between a
 * program and MPI (LD_PRELOAD). A message has arrived when its delay and the time of its bytes at
 * the net's rate are over. Until then a rank waits with its processor, so that every rank needs
 *   one. PITH_NET_US     the delay, one way, in microseconds
 *   PITH_NET_GBIT   the rate of each rank's connection in either direction, in Gbit/s
 * It does not foresee messages that meet in a switch, nor what a system's network stack computes.
 */
#include <mpi.h>
#include <stdlib.h>

static double delay_s = -1, byte_s;

static void wait_for(double bytes)
{
    double start = MPI_Wtime();
    if (delay_s < 0) {
        const char *us = getenv("PITH_NET_US"), *gbit = getenv("PITH_NET_GBIT");
        delay_s = us != NULL ? atof(us) * 1e-6 : 0;
        byte_s = gbit != NULL ? 8 / (atof(gbit) * 1e9) : 0;
    }
    while (MPI_Wtime() < start + delay_s + bytes * byte_s) {
    }
}

static double bytes_of(int count, MPI_Datatype type)
{
    int size;
    MPI_Type_size(type, &size);
    return (double)count * size;
}

/* Of parts that all ranks get from all: what this rank receives, or sends if that is more. */
static double busiest(int own, const int *counts, MPI_Datatype type, MPI_Comm comm)
{
    int n, all = 0;
    MPI_Comm_size(comm, &n);
    for (int r = 0; r < n; r++)
        all += counts[r];
    int sent = (n - 1) * own, received = all - own;
    return bytes_of(sent > received ? sent : received, type);
}

int MPI_Allgatherv(const void *send, int n_send, MPI_Datatype send_type, void *receive,
                   const int *counts, const int *at, MPI_Datatype type, MPI_Comm comm)
{
    int status = PMPI_Allgatherv(send, n_send, send_type, receive, counts, at, type, comm);
    wait_for(busiest(n_send, counts, type, comm));
    return status;
}

int MPI_Gatherv(const void *send, int n_send, MPI_Datatype send_type, void *receive,
                const int *counts, const int *at, MPI_Datatype type, int root, MPI_Comm comm)
{
    int rank, status = PMPI_Gatherv(send, n_send, send_type, receive, counts, at, type, root, comm);
    MPI_Comm_rank(comm, &rank);
    if (rank == root)
        wait_for(busiest(0, counts, type, comm));
    return status;
}

int MPI_Allgather(const void *send, int n_send, MPI_Datatype send_type, void *receive, int n,
                  MPI_Datatype type, MPI_Comm comm)
{
    int n_rank, status = PMPI_Allgather(send, n_send, send_type, receive, n, type, comm);
    MPI_Comm_size(comm, &n_rank);
    wait_for(bytes_of((n_rank - 1) * n, type));
    return status;
}

int MPI_Bcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
    int rank, status = PMPI_Bcast(data, n, type, root, comm);
    MPI_Comm_rank(comm, &rank);
    if (rank != root)
        wait_for(bytes_of(n, type));
    return status;
}

/* A message that is there already came while the rank computed. */
int MPI_Recv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status *status)
{
    int there = 0;
    MPI_Iprobe(from, tag, comm, &there, MPI_STATUS_IGNORE);
    int result = PMPI_Recv(data, n, type, from, tag, comm, status);
    if (!there)
        wait_for(bytes_of(n, type));
    return result;
}
