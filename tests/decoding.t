#!/usr/bin/env perl
# decoding.t - what 07_flash_decoding promises beyond right results: which bits depend on what; and inputs at the ends of the
# number formats, where every key must still count.
#
# The random inputs of a problem with one batch entry are those of the first entry of a larger one.
use strict;
use warnings;
use Test::More;
use File::Temp qw(tempdir);
use lib 'tests';
use Npy;
use Program;

my $root = tempdir(CLEANUP => 1);
my @problem = (qw(--heads 4 --kv-heads 2 --seqlen-k 1500 --head-dim 64 --iters 1));

# O of the first batch entry.
sub first_entry {
    my ($name, @options) = @_;
    mkdir "$root/$name";
    my $run = run('07_flash_decoding', @problem, '--save', "$root/$name", @options);
    is($run->{code}, 0, "@options") or diag($run->{out}, $run->{err});
    my (undef, undef, $o) = read_npy("$root/$name/o.npy");
    return join ' ', @$o[0 .. 4 * 64 - 1];
}

my @split_k = ('--variant', 'split_k');
my @alone = ('--batch', 1);
my @together = ('--batch', 3, '--lengths', '1500,1,700');
my $alone = first_entry('alone', @split_k, @alone, '--split-size', 512);
is(first_entry('together', @split_k, @together, '--split-size', 512), $alone, '--split-size: the same bits, whatever else is in the batch');
if (($ENV{TEST_DEVICE} // '') ne 'cuda') { # how the host cuts; a GPU has more blocks than these have key tiles
    my @shares = ('--variant', 'equal_shares');
    isnt(first_entry('auto', @shares, @together), first_entry('auto_alone', @shares, @alone), 'equal_shares: other pieces, other bits; so bits can tell');
    isnt(first_entry('larger', @split_k, @alone, '--split-size', 1024), $alone, 'and other pieces are what --split-size asks for');
    is(first_entry('splits', @split_k, @alone, '--splits', 3), $alone, '--splits 3 is --split-size 512 here');
}

# All scores of a row are equal, or as good as equal, so O is the mean of V: 1/2, if every key counts and none that does not
# exist. [what, Q, K, LSE, options]
my ($keys, $D) = (100, 64);
my $log = log($keys);
my @edges = (
    ['a folded scale that underflows', 1, 0.01, $log, '--scale', '1e-45'],
    ['K of 1e-38 and zeros', 1, 1e-38, $log, '--dtype', 'bf16'],
    ['the smallest K', 1, 9.2e-41, $log, '--dtype', 'bf16'],
    ['scores of -6e33', 1e16, -1e16, -6.4e33, qw(--dtype bf16 --scale 1)],
    ['scores of 6e33', 1e16, 1e16, 6.4e33, qw(--dtype bf16 --scale 1)],
);
for my $edge (@edges) {
    my ($what, $q, $k, $lse, @options) = @$edge;
    mkdir "$root/edge" and mkdir "$root/result";
    my @k = map { abs $k < 1e-30 && $_ % $D % 2 ? 0 : $k } 0 .. $keys * $D - 1;
    my @v = map { int($_ / $D) % 2 } 0 .. $keys * $D - 1;
    write_text("$root/edge/q.npy", npy('<f4', [1, 1, 1, $D], [($q) x $D]));
    write_text("$root/edge/k.npy", npy('<f4', [1, 1, $keys, $D], \@k));
    write_text("$root/edge/v.npy", npy('<f4', [1, 1, $keys, $D], \@v));
    for my $variant ('one_block', 'split_k', 'equal_shares') {
        for my $cache ('same', 'e4m3') {
            my $run = run('07_flash_decoding', '--load', "$root/edge", '--save', "$root/result", '--no-validate', '--iters', 1,
                '--variant', $variant, '--kv-cache', $cache, @options);
            is($run->{code}, 0, "$what: $variant, cache $cache") or diag($run->{err});
            my (undef, undef, $o) = read_npy("$root/result/o.npy");
            is(scalar(grep { abs($_ - 0.5) <= 2**-8 } @$o), $D, 'O is the mean of V') or diag("@$o[0 .. 3]");
            my (undef, undef, $got) = read_npy("$root/result/lse.npy");
            ok(@$got == 1 && abs($got->[0] - $lse) <= 0.01 * abs $lse, "LSE is $lse") or diag("@$got");
        }
    }
}

done_testing();
