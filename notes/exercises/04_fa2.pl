# Exercises of notes/04_fa2.md.
my $wavefronts = sub {
    my ($trace) = @_;
    return shared_wavefronts($trace->('--variant tuned --heads 1 --seqlen 512 --head-dim 128'));
};

exercise '04.1', ask => 'the shared-memory wavefronts of tuned at N = 512, D = 128, one head', answer => $wavefronts;

exercise '04.2',
    copy => '04_fa2/tuned.cu', change => 'm_tiles = 1 for every D', changed => qr/constexpr int m_tiles = 1;/,
    ask => 'the same wavefronts now', answer => $wavefronts;

exercise '04.3',
    copy => '04_fa2/tuned.cu', change => 'SLACK = 20', changed => qr/constexpr float SLACK = 20;/,
    ask => 'options with which fp16 fails now and bf16 does not',
    check => sub {
        my ($answer, $run) = @_;
        my @options = grep { $_ ne '' } split ' ', $answer;
        my @small = (qw(--variant tuned --iters 1), @options);
        my $fp16 = $run->(@small, '--dtype', 'fp16');
        return $fp16->{reason} if $fp16->{code} eq '2';
        return 'fp16 agrees with 00_naive' if $fp16->{code} eq '0';
        my $bf16 = $run->(@small, '--dtype', 'bf16');
        return $bf16->{code} eq '0' ? '' : 'bf16 fails, too';
    };

exercise '04.4',
    ask => 'P = 2^(scale_log2 S - m) of two neighbouring keys, their share of l, and the pair as quarter j of the A operand',
    variant => 'tuned',
    blank => {file => '04_fa2/tuned.cu', from => 'const int h = j % 2;', to => 'a[i][j] = pack_pair<T>(low, high);'};
