#!/usr/bin/env perl
# words.t - the book stays short: README.md, the page of each stage and all pages together have no more words than here, counted as `wc -w` does.
#
#     perl tests/words.t
use strict;
use warnings;
use Test::More;

my $all = 0;
for my $page ('README.md', sort glob 'notes/*.md') {
    open my $in, '<:utf8', $page or die "$page: $!";
    my $words = () = do { local $/; <$in> } =~ /\S+/g;
    $all += $words;
    cmp_ok($words, '<=', 2300, "$page: words") if $page =~ /README\.md|notes\/\d\d_/;
}
cmp_ok($all, '<=', 68_000, 'all pages: words');
done_testing;
