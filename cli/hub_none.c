/*
 * hub_none.c - the hub in a build without libcurl.
 */
#include "hub.h"

#include "io.h"

_Noreturn static void refuse(const char *repo)
{
    cli_fail("%s: this build cannot fetch models, since it was made without HTTP (PITH_HTTP=OFF)",
             repo);
}

struct hub_list hub_list(const char *repo)
{
    refuse(repo);
}

void hub_list_free(struct hub_list *list)
{
    (void)list;
}

int64_t hub_part_bytes(const struct hub_file *file, const char *to)
{
    (void)file, (void)to;
    return 0;
}

void hub_fetch(const char *repo, const struct hub_file *file, const char *to)
{
    (void)file;
    (void)to;
    refuse(repo);
}
