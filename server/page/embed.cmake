# Writes a file's bytes as C: cmake -DIN=FILE -DOUT=FILE.c -P embed.cmake
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],)"
  "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include \"page.h\"\nconst char server_page[] = {\n${bytes}0};
const size_t server_page_size = ${size};\n")
