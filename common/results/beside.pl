#!/usr/bin/env perl
# beside.pl - the ladder that was measured beside the H200's.      (make results)
#
#     perl common/results/beside.pl notes/results/my-gpu
#
# Order: 1 for the fastest kernel of those that were timed on both.
use strict;
use warnings;
use JSON::PP;

my ($here, $there) = (@ARGV, 'notes/results/nvidia-h200');
my $format = "%-34s %12s %5s %14s %5s  %s\n";
for my $file (qw(ladder backward fp8 decode)) {
    my ($rows, $h200) = map { rows("$_/$file.jsonl") } $here, $there;
    my @names = sort { $rows->{$a}{place} <=> $rows->{$b}{place} } keys %$rows;
    my @both = grep { $rows->{$_}{latency_ms} && $h200->{$_}{latency_ms} } @names;
    my ($order, $reference) = map { order($_, @both) } $rows, $h200;
    printf $format, $file, 'latency', 'order', 'H200', 'order', '' if @names;
    for my $name (@names) {
        my ($row, $other) = ($rows->{$name}, $h200->{$name});
        printf $format, $name, ms($row), $order->{$name} // '', ms($other), $reference->{$name} // '',
            $row->{latency_ms} ? $order->{$name} && $order->{$name} != $reference->{$name} ? 'another order' : '' : $row->{note} // '';
    }
    print "\n" if @names;
}

# By variant: its row, and where it stands in the file. What a variant prepares has no place on a ladder.
sub rows {
    my ($file) = @_;
    my %rows;
    open my $in, '<', $file or return \%rows;
    for my $row (map { decode_json($_) } <$in>) {
        $row->{place} = keys %rows;
        $rows{$row->{variant}} = $row if $row->{direction} eq ($file =~ /backward/ ? 'backward' : 'forward') && !$rows{$row->{variant}};
    }
    return \%rows;
}

# 1 for the fastest.
sub order {
    my ($rows, @names) = @_;
    my $place = 0;
    return {map { $_ => ++$place } sort { $rows->{$a}{latency_ms} <=> $rows->{$b}{latency_ms} } @names};
}

sub ms { return $_[0] && $_[0]{latency_ms} ? sprintf '%.4g ms', $_[0]{latency_ms} : '' }
