/*
 * text_sentences.h - where the sentences of a text begin and end, and which of them want an answer.
 * Pure functions of bytes: they know no store and no model.
 */
#ifndef PI_RECALL_TEXT_SENTENCES_H
#define PI_RECALL_TEXT_SENTENCES_H

#include "base/base.h"

/* Bytes [begin, end) of a text, without white space around them. */
struct text_sentence {
    size_t begin;
    size_t end;
    bool asks;    /* it ends with a question mark */
    bool demands; /* it begins with a word that asks for something: "tell", "which" */
};

/* A sentence without an end after this many bytes (code, tables) is cut there, at the end of a
   word. */
#define TEXT_SENTENCE_BYTES 640

/* The first sentence at or behind byte *at of text [len], and *at behind it; false: there is none.
   A sentence ends with the marks of many scripts (. ! ? and marks of Chinese, Arabic, Hindi), at a
   blank line, and where a line ends unless the next goes on in small letters. A full stop behind an
   initial or a title ("Dr.") or before a small letter ends nothing. */
bool text_sentence_next(const char *text, size_t len, size_t *at, struct text_sentence *out);

/* Where the question in a sentence begins: a text that breaks off without a mark in front of it is
   in the same sentence. Then it is the last word with a capital that questions begin with (without
   a question mark: demands), where the sentence begins with none. */
size_t text_question_begin(const char *text, const struct text_sentence *s);

#endif
