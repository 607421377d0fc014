/*
 * hub.h - files of a model hub, over the public HTTP interface of huggingface.co or of a mirror
 * that HF_ENDPOINT names. Everything here fails with a sentence.
 *
 * The token of HF_TOKEN is sent to the hub's own host alone. Hosts that it redirects to, where the
 * large files lie, do not see it.
 */
#ifndef CLI_HUB_H
#define CLI_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hub_file {
    char *path;   /* within the repository, no way out of it; owned by the list */
    int64_t size; /* bytes; -1: the hub names none that can be */
    char sum[65]; /* SHA-256 in hexadecimal digits; "": the hub names none */
    bool bad_sum; /* it names one that is none */
};

struct hub_list {
    struct hub_file *file; /* [n] in the order of their paths */
    size_t n;
};

/* The files of repo, "USER/REPO", at its main revision. The caller frees with hub_list_free. */
struct hub_list hub_list(const char *repo);
void hub_list_free(struct hub_list *list);

/* Bytes on disk of a part that an earlier call left. */
int64_t hub_part_bytes(const struct hub_file *file, const char *to);

/* Fetches a file to the path `to`, with a bar. A part that an earlier call left is completed. The
   file appears when it is whole and its sum is right. Ctrl-C ends the command. */
void hub_fetch(const char *repo, const struct hub_file *file, const char *to);

#endif
