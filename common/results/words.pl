#!/usr/bin/env perl
# words.pl - how many words of prose the README and the notes have. Tables, code, formulas, headings and comments are not counted.
#
#     perl common/results/words.pl             every page, and the sum
#     perl common/results/words.pl PAGE..      these pages
use strict;
use warnings;

my ($sum, @pages) = (0, @ARGV ? @ARGV : ('README.md', sort glob 'notes/*.md'));
for my $page (@pages) {
    my $words = words($page);
    $sum += $words;
    printf "%6d  %s\n", $words, $page;
}
printf "%6d  in %d pages\n", $sum, scalar @pages if @pages > 1;

sub words {
    my ($page) = @_;
    open my $in, '<:utf8', $page or die "$page: $!\n";
    local $/;
    my $text = <$in>;
    $text =~ s/^```.*?^```$//msg;         # fences
    $text =~ s/<!--.*?-->//sg;            # comments
    $text =~ s/^(?:    |\||#).*$//mg;     # formulas, tables, headings
    $text =~ s/^ *!\[[^\n]*$//mg;         # a picture's name
    $text =~ s/\]\([^)]*\)/]/g;           # where a link leads
    $text =~ s/<[^>\n]*>//g;              # <details>
    my @words = split ' ', $text;
    return scalar @words;
}
