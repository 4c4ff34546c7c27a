#!/usr/bin/env perl
# commit.t - the commit in a row is the one its program was built from, also where nothing but the commit has changed.
use strict;
use warnings;
use Test::More;
use lib 'tests';
use Scratch;

plan skip_all => 'the CPU device will do for make' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
$ENV{JOBS} = 1;
my $build = $ENV{TEST_BUILD} || 'build/cpu';
in_copies($build, \&try, 'one');

# Builds twice; what the rows say then.
sub try {
    return map {
        my $commit = $_;
        my ($built, $log) = built('00_naive', "COMMIT=$commit", "IS_COMMIT=$build/commit-$commit");
        my $row = `00_naive/00_naive --json --batch 1 --heads 1 --seqlen 8 --iters 1 2>&1`;
        ["built from $commit", scalar($built && $row =~ /"commit": "$commit"/), "$log$row"]
    } 'one', 'two';
}
