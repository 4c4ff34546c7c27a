#!/usr/bin/env perl
# rounds.pl - of several rounds' --json rows, one row per variant: the round with the median latency.
#
#     for round in 1 2 3; do ./04_fa2/04_fa2 --json; done | perl common/results/rounds.pl
#
# A row says how far the median of one run is from another run's, which min_ms and iqr_ms of a single run cannot: added are
# rounds, lowest_ms and highest_ms, over the rounds' latency_ms. Rows keep the order in which a variant first came.
use strict;
use warnings;
use JSON::PP;

my (@order, %rounds);
while (my $line = <STDIN>) {
    my $row = decode_json($line);
    my $name = join " ", map { $_ // "" } @$row{qw(stage variant direction causal settings)};
    push @order, $name if !$rounds{$name};
    push @{$rounds{$name}}, [$row->{latency_ms} // 0, $line];
}
for my $name (@order) {
    my @rounds = sort { $a->[0] <=> $b->[0] } @{$rounds{$name}};
    my $median = $rounds[$#rounds / 2];
    print $median->[1] and next if $rounds[-1][0] == 0; # it did not run
    my $more = sprintf ', "rounds": %d, "lowest_ms": %.6g, "highest_ms": %.6g}', scalar @rounds, $rounds[0][0], $rounds[-1][0];
    print $median->[1] =~ s/\}\s*$/$more\n/r;
}
