/* clang-format off */
/*
 * words.c - the word lists of the small English that the models of this repository are trained on.
 * Written by scripts/train/words_c.py from scripts/train/language.py; not edited by hand.
 */
#include "words.h"

static const char *const names[] = {
    "Maria", "Clara", "Elena", "Greta", "Irene", "Karla", "Marta", "Nora", "Paula", "Sara", "Anna",
    "Diana", "Flora", "Helen", "Julia", "Lena", "Nina", "Rosa", "Vera", "Emma", "Anton", "David",
    "Felix", "Hugo", "Jonas", "Leon", "Oscar", "Robert", "Thomas", "Victor", "Walter", "Bruno",
    "Carl", "Emil", "Martin", "Otto", "Peter", "Simon", "Paul", "Henry",
};
const struct eval_word_list eval_names = {names, 40};

static const char *const adjectives[] = {
    "green", "blue", "red", "white", "black", "yellow", "silent", "quiet", "bright", "dark",
    "small", "large", "long", "round", "cold", "warm", "copper", "silver", "golden", "purple",
    "wooden", "iron", "stone", "glass", "paper", "heavy", "light", "soft", "hard", "sweet",
    "bitter", "broken", "hidden", "narrow", "gentle", "proud", "strong", "clean", "rare", "plain",
};
const struct eval_word_list eval_adjectives = {adjectives, 40};

static const char *const things[] = {
    "lantern", "ladder", "window", "bottle", "candle", "mirror", "basket", "hammer", "needle",
    "ribbon", "feather", "button", "pencil", "letter", "blanket", "carpet", "kettle", "spoon",
    "knife", "bucket", "barrel", "wagon", "saddle", "compass", "trumpet", "violin", "drum",
    "pepper", "cherry", "honey", "bread", "cheese", "butter", "horse", "goat", "rabbit", "fox",
    "raven", "turtle", "beetle", "spider", "salmon", "flower", "leaf", "shell", "rope", "crown",
    "coin", "key", "door", "chair", "table", "book", "box", "hat", "coat", "boat",
};
const struct eval_word_list eval_things = {things, 57};

static const char *const places[] = {
    "bridge", "tower", "mill", "harbor", "market", "village", "castle", "station", "school",
    "church", "library", "bakery", "stable", "cellar", "kitchen", "attic", "gate", "shore",
    "chapel", "inn", "farm", "field", "orchard", "valley", "cave", "dock", "square", "garden",
    "wall", "well",
};
const struct eval_word_list eval_places = {places, 30};

static const char *const roles[] = {
    "baker", "farmer", "miller", "sailor", "teacher", "doctor", "painter", "soldier", "hunter",
    "tailor", "captain", "gardener", "shepherd", "smith", "merchant", "widow",
};
const struct eval_word_list eval_roles = {roles, 16};

static const char *const onsets[] = {
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "bl",
    "br", "ch", "dr", "fl", "gr", "kr", "pl", "qu", "sh", "st", "th", "tr", "y",
};
const struct eval_word_list eval_onsets = {onsets, 32};

static const char *const vowels[] = {
    "a", "e", "i", "o", "u",
};
const struct eval_word_list eval_vowels = {vowels, 5};

static const char *const codas[] = {
    "", "", "", "b", "ck", "d", "f", "l", "ll", "m", "n", "nd", "ng", "p", "r", "rt", "s", "st",
    "t", "x",
};
const struct eval_word_list eval_codas = {codas, 20};
