#!/usr/bin/env perl
# site.t - what make site builds: every note as a page, links that lead somewhere, pages of runs, and all of it can be read.
#
#     make test-trace
use strict;
use utf8;
use warnings;
use File::Find qw(find);
use File::Temp qw(tempdir);
use JSON::PP;
use Test::More;
use lib 'tests';
use Scratch qw(read_file write_file);

my $build = $ENV{TEST_BUILD} || 'build/cpu-trace';
my $scratch = tempdir(CLEANUP => 1);
my $site = "$scratch/site";
my ($chromium) = grep { -x } map { my $name = $_; map { "$_/$name" } split /:/, $ENV{PATH} } qw(chromium chromium-browser google-chrome);
my @widths = (800, 1024, 1280, 1920);

plan skip_all => 'make test-all builds it' if !$ENV{TEST_ALL};
plan skip_all => 'no python3 here' if system('command -v python3 >/dev/null') != 0;
mkdir "$scratch/without";
write_file("$scratch/without/markdown.py", "raise ImportError('not here')\n");
like(`PYTHONPATH=$scratch/without python3 -B common/plots/site.py $site $build 2>&1`,
    qr/^make site needs Python's markdown package: install python3-markdown, or use pip install markdown\n\z/, 'without the package: one line');
is($? >> 8, 2, '... exit code 2');
if (system('python3 -c "import markdown" 2>/dev/null') != 0) {
    done_testing;
    exit;
}
for my $folder ('', '.') {
    like(`python3 -B common/plots/site.py '$folder' $build 2>&1`, qr/^make site needs DIR=[^\n]*\n\z/, "DIR=$folder: one line");
    is($? >> 8, 2, '... exit code 2');
    ok(!-e 'index.html', '... and nothing is written');
}
like(`make -n site DIR=somewhere DEVICE=cpu TRACE=1`, qr{site\.py 'somewhere' build/cpu-trace$}m, 'make site calls it');

is(system("python3 -B common/plots/site.py $site $build >$scratch/out 2>&1"), 0, 'built') or diag(read_file("$scratch/out"));
my %text;
find({no_chdir => 1, wanted => sub { $text{s/^\Q$site\E\///r} = read_file($_) if -f }}, $site);
is(join(' ', grep { !$text{s/\.md$/.html/r} } glob 'notes/*.md'), '', 'every note is a page');
like($text{'notes/04_fa2.html'}, qr/<h1[^>]*>04_fa2: /, '... the note of 04, too, which has a page of a run beside it');
is(join(' ', grep { length $text{$_} > 300 * 1024 } sort keys %text), '', 'no file is larger than 300 KiB');
is(join(' ', grep { !$text{"watch/$_.html"} } qw(04_fa2 05_fa2_backward 07_flash_decoding 08_fa3 10_block_sparse)), '', 'five pages of runs');
is(join("\n", map { dead($_, $text{$_}) } grep { /\.html$/ && !/^watch/ } sort keys %text), '', 'every link leads somewhere');
isnt(dead('index.html', '<a href="notes/nowhere.html">'), undef, 'planted: a link that leads nowhere');
my @markdown = grep { (my $body = $text{$_}) =~ s/<(pre|code)\b.*?<\/\1>//gs; $body =~ /```|\*\*|<p>[-|#]|\]\(/ } 'index.html', map { s/\.md$/.html/r } glob 'notes/*.md';
is("@markdown", '', 'no Markdown is left');
my $runs_on = qr/^\|.*\|\n(?![|<]|```)\S/m;
is(join(' ', grep { read_file($_) =~ $runs_on } 'README.md', glob 'notes/*.md'), '', 'no paragraph runs on as a row of the table above it');
like("| a |\n| --- |\n| b |\nSo we see.\n", $runs_on, 'planted: one that does');
is(join(' ', grep { $text{$_} =~ /(?:src|href)="https?:[^"]*\.(?:js|css)|<link[^>]*href="http|<script[^>]*src/ } grep { /\.html$/ } sort keys %text), '', 'nothing is loaded from elsewhere');

SKIP: {
    skip 'no Chromium', 7 * @widths if !$chromium;
    for my $width (@widths) {
        for my $page ('index.html', 'notes/04_fa2.html', 'notes/05_fa2_backward.html', map { "watch/$_.html" } '04_fa2', '05_fa2_backward', '07_flash_decoding', '10_block_sparse') {
            is(looked_at($page, $width), '', "$page, $width px wide: nothing beyond the window or cut off, letters of 14 px");
        }
    }
}
done_testing;

# Links of a page that lead to no file of the site, or to no place in it.
sub dead {
    my ($page, $body) = @_;
    my @dead;
    for my $link ($body =~ /(?:href|src)="([^"]*)"/g) {
        next if $link =~ /^[a-z]+:/;
        my ($file, $place) = split /#/, $link, 2;
        my $target = $file eq '' ? $page : ($page =~ s/[^\/]*$//r) . $file;
        1 while $target =~ s/[^\/]+\/\.\.\///;
        push @dead, "$page: $link" if !defined $text{$target} || defined $place && $text{$target} !~ /id="\Q$place\E"/;
    }
    return @dead;
}

sub looked_at {
    my ($page, $width) = @_;
    write_file("$site/$page.seen.html", $text{$page} . <<'END');
<script>
addEventListener('load', () => {
    const found = [], small = [...document.querySelectorAll('body *')].filter(e => e.innerText?.trim() && !e.closest('svg, sup, sub') && parseFloat(getComputedStyle(e).fontSize) < 14);
    if (document.documentElement.scrollWidth > innerWidth) found.push('wider than the window');
    const cut = [...document.querySelectorAll('p')].filter(e => getComputedStyle(e).overflowX === 'hidden' && e.scrollWidth > e.clientWidth);
    if (cut.length) found.push('cut off: ' + cut[0].innerText.slice(0, 60));
    if (small.length) found.push('small: ' + small[0].innerText.slice(0, 40));
    document.title = 'seen ' + found.join('; ');
});
</script>
END
    my $dom = `timeout 60 $chromium --headless --no-sandbox --disable-gpu --user-data-dir=$scratch/chrome --window-size=$width,800 --virtual-time-budget=3000 --dump-dom 'file://$site/$page.seen.html' 2>/dev/null`;
    return $dom =~ /<title>seen (.*?)</ ? $1 : 'not seen';
}
