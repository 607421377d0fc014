/*
 * completion.c - `pith completion`: scripts for shells, and what they ask for. A script hands the
 * words of a command line to "pith completion words". That finds the words that may stand last,
 * from the tables of commands, options, policies and storage types. So a script need not know them.
 *
 * The answer's first line says what else the shell may offer: "files", "folders" or "none". Each
 * further line is a word and what it means, with a tab between.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "io.h"
#include "pith/policy.h"

struct options {
    const char *shell;
    struct option_texts words;
};

static const char *const shells[] = {"bash", "zsh", "fish", "words", NULL};

#define AT(member) .offset = offsetof(struct options, member)
static const struct option table[] = {
    {"SHELL", NULL, NULL, OPTION_CHOICE, AT(shell), .choices = shells, .required = true,
     .help = "whose script to print; words answers one"},
    {"WORDS", NULL, NULL, OPTION_TEXTS, AT(words), .absent = "",
     .help = "with words: the words of the line behind \"pith\", the last of them to be completed"},
    {0},
};
#undef AT

static const struct option_group groups[] = {{NULL, table, 0}, {0}};

/* ---- scripts ---- */

/* Bash breaks words at "=" and ":", too: they are put together again, and what stands before the
   last break is taken off what is found. */
static const char bash_script[] =
    "# Completion of pith for bash.\n"
    "_pith() {\n"
    "    local rest=$COMP_LINE words=() word i cut line more\n"
    "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "        word=${COMP_WORDS[i]}\n"
    "        if [[ $i -gt 0 && $rest != [[:space:]]* && -n $rest ]]; then\n"
    "            words[${#words[@]}-1]+=$word\n"
    "        else\n"
    "            rest=${rest#\"${rest%%[![:space:]]*}\"}\n"
    "            words+=(\"$word\")\n"
    "        fi\n"
    "        rest=${rest#\"$word\"}\n"
    "    done\n"
    "    word=${words[${#words[@]}-1]}\n"
    "    cut=\n"
    "    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && cut=${word%:*}:\n"
    "    [[ $COMP_WORDBREAKS == *=* && ${word#\"$cut\"} == *=* ]] && cut=${word%=*}=\n"
    "    COMPREPLY=()\n"
    "    {\n"
    "        IFS= read -r more\n"
    "        while IFS= read -r line; do\n"
    "            line=${line%%$'\\t'*}\n"
    "            COMPREPLY+=(\"${line#\"$cut\"}\")\n"
    "        done\n"
    "    } < <(\"${words[0]}\" completion words -- \"${words[@]:1}\" 2>/dev/null)\n"
    "    case $more in\n"
    "        files) compopt -o filenames\n"
    "            while IFS= read -r line; do COMPREPLY+=(\"$line\"); done \\\n"
    "                < <(compgen -f -- \"${word##*[=,]}\") ;;\n"
    "        folders) compopt -o filenames\n"
    "            while IFS= read -r line; do COMPREPLY+=(\"$line\"); done \\\n"
    "                < <(compgen -d -- \"${word##*[=,]}\") ;;\n"
    "    esac\n"
    "    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace\n"
    "    return 0\n"
    "}\n"
    "complete -F _pith pith\n";

static const char zsh_script[] =
    "#compdef pith\n"
    "# Completion of pith for zsh.\n"
    "_pith() {\n"
    "    local more line word\n"
    "    local -a plain open shown_plain shown_open\n"
    "    {\n"
    "        IFS= read -r more\n"
    "        while IFS= read -r line; do\n"
    "            word=${line%%$'\\t'*}\n"
    "            if [[ $word == *[=:] ]]; then\n"
    "                open+=(\"$word\"); shown_open+=(\"$word  ${line#*$'\\t'}\")\n"
    "            else\n"
    "                plain+=(\"$word\"); shown_plain+=(\"$word  ${line#*$'\\t'}\")\n"
    "            fi\n"
    "        done\n"
    "    } < <($words[1] completion words -- \"${(@Q)words[2,CURRENT]}\" 2>/dev/null)\n"
    "    (( $#plain )) && compadd -l -d shown_plain -a plain\n"
    "    (( $#open )) && compadd -S '' -l -d shown_open -a open\n"
    "    case $more in\n"
    "        files) [[ $PREFIX == --*=* ]] && compset -P '*='; _files ;;\n"
    "        folders) [[ $PREFIX == --*=* ]] && compset -P '*='; _files -/ ;;\n"
    "    esac\n"
    "}\n"
    "if [[ $funcstack[1] == _pith ]]; then _pith \"$@\"; else compdef _pith pith; fi\n";

static const char fish_script[] =
    "# Completion of pith for fish.\n"
    "function __pith_complete\n"
    "    set -l words (commandline -opc) (commandline -ct)\n"
    "    set -l answer ($words[1] completion words -- $words[2..-1] 2>/dev/null)\n"
    "    set -l word (commandline -ct)\n"
    "    switch \"$answer[1]\"\n"
    "        case files\n"
    "            set -l before (string match -r '^--[^=]*=' -- $word)\n"
    "            for path in (__fish_complete_path (string replace -r '^--[^=]*=' '' -- $word))\n"
    "                printf '%s%s\\n' \"$before\" $path\n"
    "            end\n"
    "        case folders\n"
    "            set -l before (string match -r '^--[^=]*=' -- $word)\n"
    "            for path in (__fish_complete_directories (string replace -r '^--[^=]*=' '' -- "
    "$word))\n"
    "                printf '%s%s\\n' \"$before\" $path\n"
    "            end\n"
    "    end\n"
    "    test (count $answer) -gt 1; and printf '%s\\n' $answer[2..-1]\n"
    "end\n"
    "complete -c pith -f -a '(__pith_complete)'\n";

/* ---- what is found ---- */

#define FOUND_MAX 1024
#define FOUND_LEN 160

struct found {
    char line[FOUND_MAX][FOUND_LEN]; /* the word, a tab, what it means */
    int n;
    const char *more; /* "files", "folders", "none" */
    const char *word; /* what is to be completed */
};

/* Adds before + name + behind where it begins as the word does; of help the first line. */
static void add(struct found *f, const char *before, int before_len, const char *name,
                const char *behind, const char *help)
{
    char text[FOUND_LEN];
    int len = snprintf(text, sizeof(text), "%.*s%s%s", before_len, before, name, behind);
    if (len + 2 > FOUND_LEN || f->n == FOUND_MAX || strncmp(text, f->word, strlen(f->word)) != 0)
        return;
    char *line = f->line[f->n++];
    memcpy(line, text, (size_t)len);
    line[len] = '\t';
    size_t help_len = strcspn(help, "\n"), room = (size_t)(FOUND_LEN - len - 2);
    memcpy(line + len + 1, help, help_len < room ? help_len : room);
}

/* ---- values ---- */

/* Policies of a verb as far as NAME:key=value,... is written; before_len bytes of the word stand
   before the policy. */
static void add_policies(struct found *f, pith_verb verb, int before_len)
{
    const char *before = f->word, *text = f->word + before_len, *colon = strchr(text, ':');
    pith_policy_info policy;
    pith_preset_info preset;
    pith_param_info param;
    for (int32_t i = 0; pith_policy_get(verb, i, &policy) == PITH_OK; i++) {
        if (colon == NULL) {
            add(f, before, before_len, policy.name, "", policy.summary);
            continue;
        }
        size_t len = (size_t)(colon - text);
        if (strlen(policy.name) != len || memcmp(policy.name, text, len) != 0)
            continue;
        const char *comma = strrchr(colon, ',');
        const char *begin = comma != NULL ? comma + 1 : colon + 1;
        for (int32_t j = 0; comma == NULL && pith_policy_get_preset(verb, i, j, &preset) == PITH_OK;
             j++)
            add(f, before, (int)(begin - before), preset.name, "", preset.help);
        for (int32_t j = 0; pith_policy_get_param(verb, i, j, &param) == PITH_OK; j++) {
            size_t key_len = strlen(param.key);
            add(f, before, (int)(begin - before), param.key, "=", param.help);
            if (strncmp(begin, param.key, key_len) == 0 && begin[key_len] == '=' &&
                strcmp(param.type, "text") == 0)
                f->more = "files";
        }
    }
    if (colon == NULL)
        add(f, before, before_len, "none", "", "no policy");
}

static void add_types(struct found *f, int before_len)
{
    pith_store_info type;
    for (int32_t i = 0; pith_store_type(i, &type) == PITH_OK; i++)
        add(f, f->word, before_len, type.name, "", type.summary);
}

/* The values of an option of this name, where more is known of them than its row says. */
static const struct {
    const char *option;
    pith_verb verb;
} policy_options[] = {
    {"--keep", PITH_KEEP},   {"--read", PITH_READ},   {"--recall", PITH_RECALL},
    {"--share", PITH_SHARE}, {"--policy", PITH_KEEP}, {"--read-policy", PITH_READ},
};

static void add_value(struct found *f, const struct option *o, int before_len)
{
    static const char *const drafts[] = {"lookup", "none", "auto", NULL};
    const char *value = o->value != NULL ? o->value : o->name;
    for (int i = 0; o->type == OPTION_CHOICE && o->choices[i] != NULL; i++)
        add(f, f->word, before_len, o->choices[i], "", o->help);
    for (size_t i = 0; i < sizeof(policy_options) / sizeof(policy_options[0]); i++)
        if (strcmp(o->name, policy_options[i].option) == 0)
            add_policies(f, policy_options[i].verb, before_len);
    if (strncmp(o->name, "--cache-type-", 13) == 0 || strcmp(o->name, "--reference-type") == 0)
        add_types(f, before_len);
    if (strcmp(o->name, "--chat-template") == 0)
        for (int32_t i = 0; pith_chat_template_name(i) != NULL; i++)
            add(f, f->word, before_len, pith_chat_template_name(i), "", "a template");
    for (int i = 0; strcmp(o->name, "--draft") == 0 && drafts[i] != NULL; i++)
        add(f, f->word, before_len, drafts[i], "", "how tokens are drafted");
    if (strcmp(value, "DIR") == 0 || strcmp(value, "FOLDER") == 0)
        f->more = "folders";
    else if (strstr(value, "FILE") != NULL || strcmp(value, "WHAT") == 0 ||
             strcmp(value, "MODEL") == 0 || strcmp(value, "IN") == 0 || strcmp(value, "OUT") == 0 ||
             strcmp(value, "STATS") == 0 || strcmp(value, "BASES") == 0)
        f->more = "files";
}

/* ---- options ---- */

/* The option with a name of len bytes; NULL: none. */
static const struct option *option_named(const struct command *c, const char *word, size_t len)
{
    for (const struct option_group *g = c->groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++)
            if (!options_is_operand(o) &&
                (options_has_word(o->name, word, len) || options_has_word(o->alias, word, len) ||
                 options_has_word(o->also, word, len)))
                return o;
    return NULL;
}

static bool takes_word(const struct option *o)
{
    return o->type != OPTION_FLAG && o->type != OPTION_MAYBE && o->type != OPTION_TAKEN &&
           o->type != OPTION_TAKEN_SWITCH && o->value != NULL;
}

static void add_options(struct found *f, const struct command *c)
{
    for (const struct option_group *g = c->groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++) {
            if (options_is_operand(o) || !options_has_field(o))
                continue;
            add(f, "", 0, o->name, "", o->help);
            if (o->alias != NULL && strlen(f->word) > 0 && f->word[1] != '-')
                add(f, "", 0, o->alias, "", o->help);
        }
    add(f, "", 0, "--help", "", "tell the options");
}

static const struct option *operand_at(const struct command *c, int index)
{
    for (const struct option_group *g = c->groups; g->options != NULL; g++)
        for (const struct option *o = g->options; o->name != NULL; o++)
            if (options_is_operand(o) && (o->type == OPTION_TEXTS || index-- == 0))
                return o;
    return NULL;
}

/* The words of a command's line; the last is to be completed. */
static void complete_leaf(struct found *f, const struct command *c, const char *const *words, int n)
{
    int n_operand = 0;
    const struct option *open = NULL; /* whose value the next word is */
    for (int i = 0; i < n - 1; i++) {
        const char *word = words[i];
        if (open != NULL) {
            open = NULL;
        } else if (word[0] == '-' && word[1] != '\0') {
            const struct option *o = option_named(c, word, strlen(word));
            open = o != NULL && takes_word(o) ? o : NULL;
        } else {
            n_operand++;
        }
    }
    const char *equals = strncmp(f->word, "--", 2) == 0 ? strchr(f->word, '=') : NULL;
    if (open == NULL && equals != NULL) {
        const struct option *o = option_named(c, f->word, (size_t)(equals - f->word));
        if (o != NULL)
            add_value(f, o, (int)(equals + 1 - f->word));
        return;
    }
    if (open != NULL) {
        add_value(f, open, 0);
        return;
    }
    if (f->word[0] == '-') {
        add_options(f, c);
        return;
    }
    const struct option *o = operand_at(c, n_operand);
    if (o == NULL)
        return;
    if (c == &command_policies)
        for (pith_verb v = PITH_KEEP; v < PITH_N_VERB; v++) {
            pith_policy_info policy;
            for (int32_t i = 0; pith_policy_get(v, i, &policy) == PITH_OK; i++)
                add(f, "", 0, policy.name, "", policy.summary);
        }
    add_value(f, o, 0);
}

/* ---- commands ---- */

static void complete(struct found *f, const char *const *words, int n)
{
    const struct command *const *list = cli_commands;
    bool help = n > 1 && strcmp(words[0], "help") == 0;
    for (int i = help; list != NULL; i++) {
        const struct command *const *c = list;
        if (i == n - 1) {
            for (; *c != NULL; c++)
                add(f, "", 0, (*c)->name, "", (*c)->summary);
            if (i == 0)
                add(f, "", 0, "help", "", "tell the options of a command");
            if (i == 1 && help)
                add(f, "", 0, "environment", "", "variables of the options");
            return;
        }
        while (*c != NULL && strcmp((*c)->name, words[i]) != 0)
            c++;
        if (*c == NULL)
            return;
        if ((*c)->subcommands == NULL) {
            if (!help)
                complete_leaf(f, *c, words + i + 1, n - i - 1);
            return;
        }
        list = (*c)->subcommands;
    }
}

static void answer(const struct option_texts *given)
{
    struct found *f = cli_alloc(1, sizeof(*f));
    f->more = "none";
    f->word = given->n > 0 ? given->text[given->n - 1] : "";
    if (given->n > 0)
        complete(f, given->text, given->n);
    printf("%s\n", f->more);
    for (int i = 0; i < f->n; i++)
        puts(f->line[i]);
    free(f);
}

static int run(void *options)
{
    const struct options *o = options;
    if (strcmp(o->shell, "words") == 0) {
        answer(&o->words);
        return EXIT_SUCCESS;
    }
    if (o->words.n > 0)
        cli_fail_usage("\"%s\": words go with \"pith completion words\"", o->words.text[0]);
    fputs(strcmp(o->shell, "bash") == 0  ? bash_script
          : strcmp(o->shell, "zsh") == 0 ? zsh_script
                                         : fish_script,
          stdout);
    return EXIT_SUCCESS;
}

const struct command command_completion = {
    .name = "completion",
    .summary = "print a script that completes command lines in a shell",
    .synopsis = "bash | zsh | fish",
    .notes = "make install puts the scripts where shells look. For one shell alone:\n"
             "\n"
             "  source <(pith completion bash)\n"
             "  source <(pith completion zsh)\n"
             "  pith completion fish | source",
    .groups = groups,
    .options_size = sizeof(struct options),
    .run = run,
};
