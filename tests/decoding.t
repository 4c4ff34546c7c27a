#!/usr/bin/env perl
# decoding.t - what 07_flash_decoding promises beyond right results: which bits depend on what.
#
# The random inputs of a problem with one batch entry are those of the first entry of a larger one.
use strict;
use warnings;
use Test::More;
use File::Temp qw(tempdir);
use lib 'tests';
use Program;

my $root = tempdir(CLEANUP => 1);
my @problem = (qw(--heads 4 --kv-heads 2 --seqlen-k 1500 --head-dim 64 --iters 1));

# O of the first batch entry, as bytes.
sub first_entry {
    my ($name, @options) = @_;
    mkdir "$root/$name";
    my $run = run('07_flash_decoding', @problem, '--variant', 'split_k', '--save', "$root/$name", @options);
    is($run->{code}, 0, "split_k @options") or diag($run->{out}, $run->{err});
    open(my $file, '<:raw', "$root/$name/o.npy") or return "no o.npy of $name";
    local $/;
    my $npy = <$file>;
    return substr $npy, 10 + unpack('v', substr $npy, 8, 2), 4 * 64 * 2;
}

my @alone = ('--batch', 1);
my @together = ('--batch', 3, '--lengths', '1500,1,700');
my $alone = first_entry('alone', @alone, '--split-size', 512);
is(first_entry('together', @together, '--split-size', 512), $alone, '--split-size: the same bits, whatever else is in the batch');
if (($ENV{TEST_DEVICE} // '') ne 'cuda') { # how the host cuts; a GPU has more blocks than these have key tiles
    isnt(first_entry('auto', @together), first_entry('auto_alone', @alone), 'auto: other pieces, other bits; so bits can tell');
    isnt(first_entry('larger', @alone, '--split-size', 1024), $alone, 'and other pieces are what --split-size asks for');
    is(first_entry('splits', @alone, '--splits', 3), $alone, '--splits 3 is --split-size 512 here');
}

done_testing();
