# Exercises of notes/02_online_softmax.md.
exercise '02.1',
    ask => 'LSE of (2, 1.5) and (5, 1.2) merged; and what it would be without the first factor',
    within => 1e-4,
    answer => sub {
        my ($m, $l, $m_other, $l_other) = (2, 1.5, 5, 1.2);
        my $m_new = $m > $m_other ? $m : $m_other;
        return ($m_new + log(exp($m - $m_new) * $l + exp($m_other - $m_new) * $l_other),
                $m_new + log($l + exp($m_other - $m_new) * $l_other));
    };

exercise '02.2',
    ask => 'the exponentials of online_statistics for one head, N = 256, D = 64',
    answer => sub {
        my ($trace) = @_;
        return sum_of({kernel => 'online_statistics'}, ['exponentials'], $trace->('--heads 1 --seqlen 256'));
    };

exercise '02.3',
    ask => "how often each byte of LSE is read by online_output, and in how many sectors a warp's request for it",
    answer => sub {
        my ($trace) = @_;
        my ($lse) = grep { $_->{kernel} eq 'online_output' && ($_->{tensor} // '') eq 'LSE' } $trace->('--heads 1 --seqlen 256');
        return ($lse->{bytes_read} / $lse->{unique_read}, $lse->{sectors_read} / $lse->{requests_read});
    };

exercise '02.4',
    ask => "m~ and l~ of this lane's 16 columns of the tile, merged into row_statistics[h]",
    variant => 'online',
    blank => {file => '02_online_softmax/online.cu', from => 'Statistics tile = {-INFINITY, 0};',
              to => 'row_statistics[h] = merge(row_statistics[h], tile);'};
