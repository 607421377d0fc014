/*
 * models.h - models that were pulled from a hub, and the names by which commands find them. They
 * lie in pith/models below XDG_CACHE_HOME (else ~/.cache), the files of USER/REPO in USER--REPO/.
 * Beside it each model has a small file of JSON, which names them. Everything here fails with a
 * sentence.
 */
#ifndef CLI_MODELS_H
#define CLI_MODELS_H

#include "session.h"

/* The name that -hf and `pith pull` take: "USER/REPO", "USER/REPO:QUANT" or a short name of the
   table. */
struct model_name {
    char repo[200];   /* "USER/REPO" */
    char quant[64];   /* "": Q4_K_M, or the first file where there is none */
    const char *file; /* -hff, borrowed; NULL: not given */
    const char *nick; /* the short name, constant; NULL: none */
};

/* Short names of repositories; NULL past the last. */
const char *models_nick(size_t i, const char **repo);

/* Fails (usage) for what is no name. */
struct model_name models_parse(const char *option, const char *text, const char *file);

/* Pulls a model, as far as its files are not there, and returns the path of its first file, which
   the caller frees. */
char *models_pull(const struct model_name *name, bool quiet);

/* The path of the model that options name, which the caller frees; NULL where they name none. With
   -hf it is pulled where it is not there; -m may give a pulled model's name. */
char *models_resolve(const struct model_options *o);

/* The same of one text: a file, or the name of a pulled model. */
char *models_find(const char *text);

#endif
