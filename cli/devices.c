/*
 * devices.c - `pith devices`: what --device takes, and how much memory each has.
 */
#include <stdio.h>

#include <jansson.h>

#include "command.h"
#include "io.h"
#include "pith/pith.h"

struct options {
    bool json;
};

static const struct option table[] = {
    {"--json", NULL, NULL, OPTION_FLAG, .offset = offsetof(struct options, json),
     .help = "print JSON"},
    {0},
};

static const struct option_group groups[] = {{NULL, table, 0}, {0}};

/* Numbers that are not known are left out. */
static json_t *device_json(const pith_device_info *d)
{
    json_t *o = json_pack("{s:s, s:s}", "name", d->name, "description", d->description);
    if (o != NULL && d->total_bytes >= 0)
        json_object_set_new(o, "total_bytes", json_integer(d->total_bytes));
    if (o != NULL && d->free_bytes >= 0)
        json_object_set_new(o, "free_bytes", json_integer(d->free_bytes));
    return o;
}

static void print_device(const pith_device_info *d)
{
    char total[32], unused[32];
    printf("%-8s %s", d->name, d->description);
    if (d->total_bytes >= 0)
        printf(", %s of memory", cli_bytes(d->total_bytes, total));
    if (d->free_bytes >= 0)
        printf(", %s free", cli_bytes(d->free_bytes, unused));
    putchar('\n');
}

static int run(void *options)
{
    const struct options *o = options;
    pith_device_info d;
    json_t *list = json_array();
    for (int32_t i = 0; pith_device_get(i, &d) == PITH_OK; i++)
        if (!o->json)
            print_device(&d);
        else if (json_array_append_new(list, device_json(&d)) != 0)
            cli_fail("no memory for the list of devices");
    if (o->json) {
        json_dumpf(list, stdout, JSON_INDENT(1));
        putchar('\n');
    }
    json_decref(list);
    return 0;
}

const struct command command_devices = {
    .name = "devices",
    .summary = "list the devices that --device takes, and their memory",
    .synopsis = "[--json]",
    .groups = groups,
    .options_size = sizeof(struct options),
    .run = run,
};
