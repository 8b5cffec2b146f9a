/* The one program of the image sandboxkit-test/static: no shell, no C library, no other file beside it. */
#include <stdio.h>

int main(int argc, char **argv)
{
    puts("hello from a static binary");
    for (int i = 0; i < argc; i++)
        puts(argv[i]);
    return fflush(stdout) == 0 ? 0 : 1;
}
