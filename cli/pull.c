/*
 * pull.c - `pith pull`: a model from a hub into the folder of models. models.c does it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "command.h"
#include "models.h"

struct pull_options {
    const char *name;
    const char *file;
    bool list;
    bool quiet;
};

#define AT(member) .offset = offsetof(struct pull_options, member)
static const struct option pull_table[] = {
    {"NAME", NULL, NULL, OPTION_TEXT, AT(name),
     .help = "USER/REPO[:QUANT], or a short name of the list"},
    {"--hf-file", "-hff", "FILE", OPTION_TEXT, AT(file), .absent = "by QUANT",
     .help = "the file of the repository"},
    {"--list", NULL, NULL, OPTION_FLAG, AT(list), .help = "list the short names"},
    {"--quiet", "-q", NULL, OPTION_FLAG, AT(quiet), .help = "say nothing at the end"},
    {0},
};
#undef AT

static const struct option_group groups[] = {{NULL, pull_table, 0}, {0}};

static int list_nicks(void)
{
    const char *nick, *repo;
    for (size_t i = 0; (nick = models_nick(i, &repo)) != NULL; i++)
        printf("%-20s %s\n", nick, repo);
    return EXIT_SUCCESS;
}

static int run(void *options)
{
    const struct pull_options *o = options;
    if (o->list)
        return list_nicks();
    if (o->name == NULL)
        cli_fail_usage("NAME is missing: USER/REPO[:QUANT], or a short name that --list lists");
    struct model_name name = models_parse("NAME", o->name, o->file);
    char *path = models_pull(&name, o->quiet);
    printf("%s\n", path);
    free(path);
    return EXIT_SUCCESS;
}

const struct command command_pull = {
    .name = "pull",
    .summary = "fetch a model from a hub",
    .synopsis = "NAME[:QUANT]",
    .notes =
        "QUANT is Q4_K_M where it is not given, and the first file where there is none of it. Of "
        "a\n"
        "model in several files all are fetched. What broke off goes on from there. The sum of\n"
        "each file is checked. Standard output is the path of the (first) file.\n"
        "\n"
        "HF_TOKEN is the token, HF_ENDPOINT a mirror; with HF_HUB_OFFLINE=1 nothing is fetched.\n"
        "Models lie in pith/models below XDG_CACHE_HOME, else below ~/.cache.\n"
        "\n"
        "  pith pull smollm2\n"
        "  pith pull Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0\n"
        "  pith run -hf Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0 --chat -p Hello",
    .groups = groups,
    .options_size = sizeof(struct pull_options),
    .run = run,
};
