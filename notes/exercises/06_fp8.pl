# Exercises of notes/06_fp8.md.
exercise '06.4',
    ask => "four neighbouring elements of P, scaled to the format's range, their share of l, and the four as quarter j of the A operand",
    variant => 'mma',
    blank => {file => '06_fp8/mma.cu', from => 'const float shift = Format::largest_exponent - m[h];',
              to => 'rounded_p[c / 4][j] = pack_4<Format>(e[0], e[1], e[2], e[3]);'};
