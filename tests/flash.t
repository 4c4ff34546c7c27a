#!/usr/bin/env perl
# flash.t - notes/flash.c is the whole algorithm on one page, and it notices when any of it is missing.
#
# Every statement of its four functions is deleted in turn (without TEST_ALL=1 an eighth of them), and so is every subtraction that keeps an exponent small or a
# gradient right. The program that is left must say that the two ways disagree, and end with exit code 1.
use strict;
use warnings;
use Test::More;
use File::Temp qw(tempdir);

my $folder = tempdir(CLEANUP => 1);
my @compilers = grep { `$_ --version 2>/dev/null` } $ENV{CC} // 'gcc', qw(gcc clang);
my @lines = do { open my $in, '<', 'notes/flash.c' or die "notes/flash.c: $!"; <$in> };
cmp_ok(scalar @lines, '<=', 120, 'it is at most 120 lines long');

# ---- it agrees with itself, under every compiler and sanitizer there is ----
my %seen;
for my $compiler (grep { !$seen{$_}++ } @compilers) {
    for my $flags ('', '-fsanitize=address,undefined') {
        system("echo 'int main(void) { return 0; }' | $compiler $flags -x c - -o $folder/probe 2>/dev/null") == 0 or next;
        my ($code, $said) = result("$compiler -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror $flags", @lines);
        is($code, 0, "$compiler $flags") or diag($said);
        like($said, qr/^S, P: 73728 bytes; .*: 2432$/m, 'and it says what is kept');
        like($said, qr/^$_ +differs by at most \d\.\de-0[4-9]$/m, "and how far $_ is off") for qw(O dQ dK dV);
    }
}
my ($full_code, $full_said) = result("$compilers[0] -O2", map { s/CAUSAL = 1/CAUSAL = 0/r } @lines);
is($full_code, 0, 'without the causal mask, too') or diag($full_said);

# ---- kernels name its lines ----
my ($in, @function) = '';
for my $n (1 .. @lines) {
    $in = $1 if $lines[$n - 1] =~ /^static \w+ (\w+)\(/;
    $function[$n] = $in;
    $in = '' if $lines[$n - 1] =~ /^}|; }/;
}
for my $kernel (qw(00_naive/naive 01_tiled/fma 02_online_softmax/fma 03_fa1/fma 04_fa2/fma 05_fa2_backward/fma
                   05_fa2_backward/naive_backward 07_flash_decoding/one_block 07_flash_decoding/split_k)) {
    my ($header) = `cat $kernel.cu` =~ /^(\/\*.*?\*\/)/s;
    my ($clause) = $header =~ s/\n \*//gr =~ /([^:]*notes\/flash\.c[^:]*)/ or fail("$kernel says which lines it makes parallel"), next;
    my %named = map { $_ => 1 } $clause =~ /\b((?:standard|flash)_\w+)/g;
    my @ends = map { /\d+/g } $clause =~ /\blines? (\d+(?: (?:and|to) \d+)?)/g;
    my @elsewhere = grep { !$named{$function[$_] // ''} } @ends;
    ok(@ends && !@elsewhere, "$kernel: lines @ends are lines of @{[sort keys %named]}");
}

# ---- it notices what is missing ----
my %mistakes;
my $function;
for my $n (0 .. $#lines) {
    $function = $1 if $lines[$n] =~ /^static void ((?:standard|flash)_\w+)/;
    undef $function if $lines[$n] =~ /^}/;
    next unless $function;
    my ($loop, $statement) = $lines[$n] =~ /^\s+(for \(.*?(?:\+\+|\+= \w+)\) )?([^{}]*;)/ or next;
    $mistakes{"$function, line " . ($n + 1) . " without $statement"} = [$n, ($loop // '') . ";\n"] unless $statement =~ /^(float|static) /;
    for my $part ($statement =~ /( - (?:m\b(?:\[r\])?|LSE\[i\]|delta(?:\[i\])?)| \/ sqrtf\(D\)| \* \(dot.*\))/g) {
        $mistakes{"$function, line " . ($n + 1) . " without$part"} = [$n, $lines[$n] =~ s/\Q$part\E//r];
    }
}
cmp_ok(scalar keys %mistakes, '>=', 35, 'there are many mistakes to make');
my @planted = sort keys %mistakes;
for my $mistake (@planted[grep { $ENV{TEST_ALL} || $_ % 8 == 0 } 0 .. $#planted]) {
    my ($n, $line) = @{$mistakes{$mistake}};
    my ($code, $said) = result("$compilers[0] -w", map { $_ == $n ? $line : $lines[$_] } 0 .. $#lines);
    is($code, 1, $mistake) or diag($said);
}
my ($code, $said) = result("$compilers[0] -w", map { s/\Q{ return sees\E/{ return i == 5 && j == 3 ? NAN : sees/r } @lines);
is($code, 1, 'a NaN is a difference') or diag($said);
done_testing();

# How the program of these lines ends, and what it says.
sub result {
    my ($compile, @program) = @_;
    open my $out, '>', "$folder/flash.c" or die $!;
    print $out @program;
    close $out;
    my $said = `$compile $folder/flash.c -lm -o $folder/flash 2>&1`;
    return ($? >> 8 || 'does not compile', $said) if $?;
    $said = `$folder/flash 2>&1`;
    return ($? >> 8, $said);
}
